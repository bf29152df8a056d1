"""Put all files of a model into a directory that may outlive the process. Reading order: file_listing,
filled_directory, hub_listing.
"""
