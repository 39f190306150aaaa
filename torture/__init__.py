"""What a learner must survive: kills, bad inputs, flipped bytes, a long life. `make torture` runs all of it."""
