"""The tests of ftlaunch; README.md says what lies where."""
