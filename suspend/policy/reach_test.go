package policy

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
)

// TestReachMissesNothing: a cell that a change does not reach has the same limits, row and importance as before.
func TestReachMissesNothing(t *testing.T) {
	plain := func(l Limits) Limits {
		l.From = Sources{}
		return l
	}
	rapid.Check(t, func(t *rapid.T) {
		old, updated := drawDocument(t), drawDocument(t)
		reach := ReachOf(old, updated)
		for range 20 {
			c := lite.Cell{User: drawName(t, "user"), Model: drawName(t, "model")}
			if reach.Has(c) {
				continue
			}
			rowOld, _ := old.Row(c.User)
			rowNew, _ := updated.Row(c.User)
			levelOld, _ := old.Importance(c.User, c.Model)
			levelNew, _ := updated.Importance(c.User, c.Model)
			if !reflect.DeepEqual(plain(old.Resolve(c.User, c.Model)), plain(updated.Resolve(c.User, c.Model))) ||
				!reflect.DeepEqual(plain(rowOld), plain(rowNew)) || levelOld != levelNew {
				t.Fatalf("%v has other limits, and the change does not reach it", c)
			}
		}
	})
}

func TestReachIsNoFurtherThanItsRules(t *testing.T) {
	parse := func(text string) *Document {
		doc, err := Parse([]byte("version: 1\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	old := parse("limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]")
	alice, bob := lite.Cell{User: "a", Model: "m"}, lite.Cell{User: "b", Model: "n"}
	for _, c := range []struct {
		name, text string
		alice, bob bool
	}{
		{"nothing", "limits: [{user: '*', rate: 9/s}, {user: a, model: m, rate: 1/s}]", false, false},
		{"a cell", "limits: [{user: a, model: m, rate: 2/s}, {user: '*', rate: 9/s}]", true, false},
		{"a cell less", "limits: [{user: '*', rate: 9/s}]", true, false},
		{"a user more", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}, {user: b, rate: 1/s}]", false, true},
		{"a model more", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}, {model: n, rate: 1/s}]", false, true},
		{"a default", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 8/s}]", true, true},
		{"a row", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]\nrows: [{user: a, rate: 1/s}]", true, false},
		{"each row", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]\nrows: [{user: '*', rate: 1/s}]", true, true},
		{"columns", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]\ncolumns: [{model: m, rate: 1/s}]", false, false},
		{"importance", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]\nimportance: [{model: n, level: 3}]", false, true},
		{"the default level", "default_level: 2\nlimits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}]", true, true},
		{"a shadow", "limits: [{user: a, model: m, rate: 1/s}, {user: '*', rate: 9/s}, {user: a, rate: 1/s, shadow: true}]", false, false},
	} {
		r := ReachOf(old, parse(c.text))
		if r.Has(alice) != c.alice || r.Has(bob) != c.bob {
			t.Errorf("%s: reaches alice %v, bob %v; want %v, %v", c.name, r.Has(alice), r.Has(bob), c.alice, c.bob)
		}
	}
}
