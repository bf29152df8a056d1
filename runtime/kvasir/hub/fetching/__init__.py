"""Put all files of a model into a directory that may outlive the process. Reading order: file_listing,
filled_directory, chosen_files, hub_listing, s3_listing.
"""
