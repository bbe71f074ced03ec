"""The rank processes of one attempt: start, look at, end. Nothing here judges what is seen."""
