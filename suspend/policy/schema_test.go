package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func schemaTree(t *testing.T) map[string]any {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal(Schema(), &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestSchemaHasTheKeysOfTheParser: no key is in one of them alone, and no object is open to others.
func TestSchemaHasTheKeysOfTheParser(t *testing.T) {
	root := schemaTree(t)
	defs := root["$defs"].(map[string]any)
	adaptive := defs["adaptive"].(map[string]any)["anyOf"].([]any)[1].(map[string]any)
	for name, tc := range map[string]struct {
		object map[string]any
		keys   []string
	}{
		"document":   {root, documentKeys[:]},
		"cell":       {defs["cell"].(map[string]any), Cells.keys()},
		"row":        {defs["row"].(map[string]any), Rows.keys()},
		"column":     {defs["column"].(map[string]any), Columns.keys()},
		"level":      {defs["level"].(map[string]any), Levels.keys()},
		"broker":     {defs["broker"].(map[string]any), Broker.keys()},
		"adaptive":   {adaptive, adaptiveKeys[:]},
		"importance": {defs["importanceEntry"].(map[string]any), importanceKeys[:]},
		"signal":     {defs["signal"].(map[string]any), signalKeys[:]},
		"alarm":      {defs["alarm"].(map[string]any), alarmKeys[:]},
	} {
		got := slices.Sorted(maps.Keys(tc.object["properties"].(map[string]any)))
		want := slices.Sorted(slices.Values(tc.keys))
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema has %v, the parser %v", name, got, want)
		}
		if tc.object["additionalProperties"] != false {
			t.Errorf("%s: the schema lets other keys pass", name)
		}
	}
	for _, k := range limitKeys {
		if k.refines == "" {
			continue
		}
		for _, def := range []string{"cell", "row", "column", "level", "broker"} {
			needs := defs[def].(map[string]any)["dependentRequired"].(map[string]any)[k.name]
			if !reflect.DeepEqual(needs, []any{k.kind.name()}) {
				t.Errorf("%s: %s needs %v in the schema, %s for the parser", def, k.name, needs, k.kind.name())
			}
		}
	}
}

// TestSchemaAgreesWithParser: what the parser accepts the schema accepts, and simple faults it refuses, too.
func TestSchemaAgreesWithParser(t *testing.T) {
	c := checker{t, schemaTree(t)}
	for name, text := range map[string]string{"everything": everything, "considered": consideredDoc, "levels": allLevels, "no rules": "version: 1\nlimits:\n"} {
		if fault := c.check(c.root, tree(t, text), "document"); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
	for _, text := range []string{
		"limits: []", "version: 2", "version: 1\nlimit: []", "version: 1\ncost: euros", "version: 1\ndefault_level: 4",
		"version: 1\nlimits: [{rate: 1/s}]", "version: 1\nlimits: [{user: a, rat: 1/s}]", "version: 1\nlimits: [{user: a, rate: 5}]",
		"version: 1\nlimits: [{user: a, rate: 5/w}]", "version: 1\nlimits: [{user: '', rate: 5/s}]", "version: 1\nlimits: [{user: 7, rate: 5/s}]",
		"version: 1\nlimits: [{user: a, burst: 5s}]", "version: 1\nlimits: [{user: a, depth: 0}]", "version: 1\nlimits: [{user: a, weight: 1, shadow: true}]",
		"version: 1\nlimits: [{user: a, weight: unlimited}]", "version: 1\nlimits: [{user: a, adaptive: unlimited}]",
		"version: 1\nrows: [{user: a, window: 1/s, window_at: gateway}]", "version: 1\nlevels: [{level: 4, rate: 1/s}]",
		"version: 1\ncolumns: [{model: a, adaptive: {}}]", "version: 1\ncolumns: [{model: a, adaptive: {max: 3, decrease: 1}}]",
		"version: 1\nimportance: [{level: 1}]", "version: 1\nimportance: [{user: a, key: b, level: 1}]",
		"version: 1\nsignals: [{name: s, url: 'ftp://h', series: a, target: 1, by: a}]",
		"version: 1\nsignals: [{name: s, url: 'http://h', series: a, target: 0, by: a}]",
		"version: 1\nsignals: [{name: s, url: 'http://h', series: a, target: 1}]",
		"version: 1\nsignals: [{name: s, url: 'http://h', series: a, target: 1, by: a, level: 1}]",
		"version: 1\nalarms: [{name: s, match: {}, factor: 1, level: 1}]", "version: 1\nalarms: [{name: s, match: {a: b}, factor: 1.5, level: 1}]",
	} {
		if c.check(c.root, tree(t, text), "document") == "" {
			t.Errorf("the schema accepts\n%s", text)
		}
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("the parser accepts\n%s", text)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		text, err := drawDocument(rt).Marshal()
		if err != nil {
			rt.Fatal(err)
		}
		if fault := c.check(c.root, tree(rt, string(text)), "document"); fault != "" {
			rt.Fatalf("%s in\n%s", fault, text)
		}
	})
}

// tree reads YAML as JSON would be read.
func tree(t fataler, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v", err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v", err)
	}
	return v
}

// checker validates against the part of JSON Schema that schema.json uses. A keyword it does not know fails the test.
type checker struct {
	t    *testing.T
	root map[string]any
}

// check is the first fault of v, or empty.
func (c checker) check(schema map[string]any, v any, path string) string {
	for _, keyword := range slices.Sorted(maps.Keys(schema)) {
		if fault := c.keyword(schema, keyword, schema[keyword], v, path); fault != "" {
			return fault
		}
	}
	return ""
}

func (c checker) keyword(schema map[string]any, keyword string, want, v any, path string) string {
	number, isNumber := v.(float64)
	text, isText := v.(string)
	items, isList := v.([]any)
	object, isObject := v.(map[string]any)
	bound := func(of bool, n float64, ok func(n, bound float64) bool) string {
		if of && !ok(n, want.(float64)) {
			return fmt.Sprintf("%s: %v against %s %v", path, n, keyword, want)
		}
		return ""
	}
	least := func(n, bound float64) bool { return n >= bound }
	most := func(n, bound float64) bool { return n <= bound }
	switch keyword {
	case "$schema", "$id", "$defs", "title", "description", "then":
	case "$ref":
		name := strings.TrimPrefix(want.(string), "#/$defs/")
		return c.check(c.root["$defs"].(map[string]any)[name].(map[string]any), v, path)
	case "type":
		if !slices.ContainsFunc(list1(want), func(t any) bool { return typeOf(v, t.(string)) }) {
			return fmt.Sprintf("%s: %v is no %v", path, v, want)
		}
	case "const":
		if v != want {
			return fmt.Sprintf("%s: %v is not %v", path, v, want)
		}
	case "enum":
		if !slices.Contains(want.([]any), v) {
			return fmt.Sprintf("%s: %v is none of %v", path, v, want)
		}
	case "pattern":
		if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
			return fmt.Sprintf("%s: %q does not match %v", path, text, want)
		}
	case "minimum":
		return bound(isNumber, number, least)
	case "maximum":
		return bound(isNumber, number, most)
	case "exclusiveMinimum":
		return bound(isNumber, number, func(n, b float64) bool { return n > b })
	case "exclusiveMaximum":
		return bound(isNumber, number, func(n, b float64) bool { return n < b })
	case "minLength":
		return bound(isText, float64(utf8.RuneCountInString(text)), least)
	case "maxLength":
		return bound(isText, float64(utf8.RuneCountInString(text)), most)
	case "maxItems":
		return bound(isList, float64(len(items)), most)
	case "minProperties":
		return bound(isObject, float64(len(object)), least)
	case "maxProperties":
		return bound(isObject, float64(len(object)), most)
	case "items":
		for i, item := range items {
			if fault := c.check(want.(map[string]any), item, fmt.Sprintf("%s[%d]", path, i)); fault != "" {
				return fault
			}
		}
	case "properties", "additionalProperties", "propertyNames", "required", "dependentRequired":
		return c.object(schema, keyword, want, object, path)
	case "anyOf", "oneOf", "not", "if":
		return c.combined(schema, keyword, want, v, path)
	default:
		c.t.Fatalf("the schema has the keyword %s, which the checker does not know", keyword)
	}
	return ""
}

func (c checker) object(schema map[string]any, keyword string, want any, object map[string]any, path string) string {
	for name, value := range object {
		fault := ""
		known, isKnown := map[string]any{}, false
		if p, ok := schema["properties"].(map[string]any); ok {
			known, isKnown = p[name].(map[string]any)
		}
		switch {
		case keyword == "properties" && isKnown:
			fault = c.check(known, value, path+"."+name)
		case keyword == "propertyNames":
			fault = c.check(want.(map[string]any), name, path)
		case keyword == "additionalProperties" && !isKnown && want == false:
			fault = path + ": " + name + " is unknown"
		case keyword == "additionalProperties" && !isKnown:
			fault = c.check(want.(map[string]any), value, path+"."+name)
		}
		if fault != "" {
			return fault
		}
	}
	var needed []any
	switch keyword {
	case "required":
		needed = want.([]any)
	case "dependentRequired":
		for name, needs := range want.(map[string]any) {
			if _, ok := object[name]; ok {
				needed = append(needed, needs.([]any)...)
			}
		}
	}
	for _, name := range needed {
		if _, ok := object[name.(string)]; !ok && object != nil {
			return fmt.Sprintf("%s: no %v", path, name)
		}
	}
	return ""
}

func (c checker) combined(schema map[string]any, keyword string, want, v any, path string) string {
	matches := 0
	for _, s := range list1(want) {
		if c.check(s.(map[string]any), v, path) == "" {
			matches++
		}
	}
	switch {
	case keyword == "anyOf" && matches == 0, keyword == "oneOf" && matches != 1, keyword == "not" && matches > 0:
		return fmt.Sprintf("%s: %d match of %s %v", path, matches, keyword, want)
	case keyword == "if" && matches > 0:
		return c.check(schema["then"].(map[string]any), v, path)
	}
	return ""
}

func list1(v any) []any {
	if l, ok := v.([]any); ok {
		return l
	}
	return []any{v}
}

func typeOf(v any, name string) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}
