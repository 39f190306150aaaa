"""`GatedExperts`, the scikit-learn classifier."""
