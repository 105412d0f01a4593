package policy

// Schema is the JSON Schema (draft 2020-12) of a document.
func Schema() []byte { return nil }
