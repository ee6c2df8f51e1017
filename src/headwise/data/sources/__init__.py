"""Where the files of data are, and their readers, one per format of storage."""
