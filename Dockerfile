# A server of one model: the wheel, the extra `serve`, a user without rights, a volume for the model.
#   python -m pip wheel --no-deps -w dist . && docker build -t hge .
#   docker run -p 127.0.0.1:8000:8000 -e HGE_TOKEN=choose-one -v hge-model:/model hge
FROM python:3.12-slim

COPY dist/hge-*.whl /tmp/
# --build-arg PIP_EXTRA_INDEX_URL=… : the index of PyTorch's smaller CPU build (README, Install)
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir "$(ls /tmp/hge-*.whl)[serve]" \
    && rm -r /tmp/hge-*.whl \
    && useradd --system --uid 10001 hge \
    && install -d -o hge /model

USER 10001
VOLUME /model
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["hge", "serve", "/model/served", "--host", "0.0.0.0"]
