"""Values with a type: codecs of records, schemas, and the registry that numbers them."""
