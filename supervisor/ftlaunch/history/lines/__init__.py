"""What lines of a journal are taken to say, the same for all who read them. Pure: nothing here opens a file."""
