"""The job on the whole screen: the only place that knows Textual. What is shown is decided in top/."""
