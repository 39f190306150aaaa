"""The joint score: a combination of all experts' evidence on a row."""
