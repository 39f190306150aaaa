# %% [markdown]
# # Monitoring switches
# Every decision of a model is an event with the numbers behind it. Here a callback raises an alarm when the stream
# changes, and says whether the data are new.

# %%
from sklearn.datasets import load_digits

from hge import GatedExperts
from hge.core.events import Event

X, y = load_digits(return_X_y=True)


def alarm(event: Event) -> None:
    """Print what an operator should know."""
    if event.kind() == "expert_created":
        print(f"batch {event.step}: the data are new; an expert is being trained for them")
    elif event.kind() == "expert_changed":
        print(f"batch {event.step}: the expert in use has changed")


# %% [markdown]
# Low digits, high digits, low digits again.

# %%
model = GatedExperts(on_event=alarm)
for task in (y < 5, y >= 5, y < 5):
    model.partial_fit(X[task], y[task])

# %% [markdown]
# The same as a figure: the loss, its bound, the batches that were set aside, the experts. `model.report("report.html")`
# writes a page.

# %%
axes = model.plot()
print(model)
for expert in model.experts_:
    print(f"expert {expert.id}: {expert.batches_trained} batches, loss {expert.loss:.3g}, bound {expert.bound:.3g}")
