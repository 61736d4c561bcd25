"""The files of one database, which several processes share."""
