"""The experts: networks, scores, replay, and the pools that train them."""
