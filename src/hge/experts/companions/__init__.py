"""Simple models beside an expert's network, which learn from few rows: its nearest remembered rows and a linear model.

A network needs many steps. In one pass over a short stream the nearest rows of an expert are right after one batch, and
a linear model after a few. All three give class probabilities; `Companion` weighs them by how right each has been.
"""
