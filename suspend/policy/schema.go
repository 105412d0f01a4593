package policy

import _ "embed"

//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12, https://json-schema.org/draft/2020-12) of a document, for editors and for checks
// without this program. What it accepts may still be refused by Parse, which knows how entries belong together; what it refuses, Parse
// refuses, but for numbers in quotes.
func Schema() []byte { return []byte(schema) }
