"""Software of work: environments (uenv) as CSCS's program of that name labels and pushes them, and OCI images as Docker names them. Pure.

| module | what it holds |
|---|---|
| `labels` | what people write: a label, an image's id or digest, with `parse_label` |
| `catalog` | an image's place in a registry, and which images a label names |
| `image_metadata` | the file that an image carries: mount point and views, and what a view does to variables |
| `answers` | what the gateway says of images and caches to the command line |
| `pinning` | whether an allocation's images are resolved, so that it may be placed |
| `containers` | names of OCI images, and the registry of the site that each means |
| `container_documents` | index, manifest and configuration of an OCI image |
| `claims`, `signatures` | what was signed of an image, and who has signed it, as cosign signs |
| `site_rules` | whose images must be signed, and which devices work in images may name |
| `references` | the images and views that work asks for, and what no node could set up of them |
"""
