"""The tests of ftlaunch; CONTRIBUTING.md says what lies where."""
