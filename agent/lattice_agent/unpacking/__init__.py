"""Makes one squashfs file of the layers of an OCI image, without a file of theirs ever standing on the node: read, merge, write.

| module | what it holds |
|---|---|
| `layer_stream` | the bytes of a layer's tar, unpacked from gzip or zstd, hashed and counted |
| `tar_members` | the members of such a tar, with limits for what is wrong in it |
| `image_tree` | the files of an image: layers applied in order, with whiteouts, links and opaque directories; pure |
| `packing` | the squashfs file, written by squashfs-tools from a tar that is made of the tree |

Whoever pushes an image writes these tars, and root reads them: names are keys of a tree in memory, and nothing is unpacked to a disk.
"""
