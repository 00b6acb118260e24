"""The kvproof console command."""
