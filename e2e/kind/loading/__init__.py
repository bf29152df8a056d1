"""Loads images into nodes without a registry.

Reading order:
    load     streams an archive into the nodes, without the layers that they already have
    buildah  finds the unpacked layers of an image that buildah built
    link     hard-links these layers into the nodes, if they are on the same disk
"""
