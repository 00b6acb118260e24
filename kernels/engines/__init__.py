"""Engine releases: installed, checked, and made importable on a CPU."""
