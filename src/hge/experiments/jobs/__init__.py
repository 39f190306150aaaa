"""Many runs: what to run, side by side, until when."""
