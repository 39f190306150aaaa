"""A model as a service: HTTP in front of a `GatedExperts` that learns on, and survives being killed."""
