"""What hung ranks are doing, and who is to blame. Whether a rank hangs is judged in health."""
