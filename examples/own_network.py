# %% [markdown]
# # Your own network
# Any PyTorch network can be the expert: a function gets the shape of an input and the number of outputs.

# %%
from sklearn.datasets import load_digits
from torch import nn

from hge import GatedExperts


def small_convnet(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A convolution and a linear layer."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * height * width, outputs),
    )


# %%
X, y = load_digits(return_X_y=True)
images = X.reshape(-1, 1, 8, 8)
train, test = slice(0, 1400), slice(1400, None)
model = GatedExperts(net=small_convnet)
for low in (True, False):
    task = (y[train] < 5) == low
    model.partial_fit(images[train][task], y[train][task])

# %%
print(model)
print(f"{100 * model.score(images[test], y[test]):.1f} % of unseen images predicted rightly")
