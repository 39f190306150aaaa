"""The joint score: all experts' evidence on a row, weighed together."""
