# %% [markdown]
# # A tabular stream
# Readings of two features from three machines, one after the other and again; which machine is running is not in the
# data. Each batch is predicted before it is learned, by `GatedExperts` and by a linear model.

# %%
import numpy as np
from sklearn.linear_model import SGDClassifier

from hge import GatedExperts

rng = np.random.default_rng(0)
CENTRES = ([0, 0], [12, 3], [-10, 12])


def readings(machine: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one machine in its own units; the label is whether a part is faulty."""
    raw = rng.normal(size=(rows, 2))
    labels = np.where((raw[:, 0] > 0) ^ (machine == 1), "faulty", "good")
    return raw * (1 + machine) + CENTRES[machine], labels


# %%
experts, linear = GatedExperts(), SGDClassifier(random_state=0)
right = {"GatedExperts": 0, "SGDClassifier": 0}
counted = 0
for machine in (0, 1, 2, 0, 1, 2):
    for _ in range(20):
        X, y = readings(machine, 32)
        if counted:
            right["GatedExperts"] += int((experts.predict(X) == y).sum())
            right["SGDClassifier"] += int((linear.predict(X) == y).sum())
        counted += 32
        experts.partial_fit(X, y)
        linear.partial_fit(X, y, classes=["faulty", "good"])

# %%
for name, count in right.items():
    print(f"{name}: {100 * count / (counted - 32):.1f} % of the rows predicted rightly")
print(experts)
