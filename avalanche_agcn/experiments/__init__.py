"""What every run shares: settings, the stream loop, saved state, results and tables."""
