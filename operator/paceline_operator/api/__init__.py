"""The API: what users write and read. Types, bounds, defaults and CEL beside the field; crd.py turns them into CRDs."""
