package lite

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var nameSyntax = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// TestC93 takes every pair of the case and of what the encoding uses itself: no two
// cells share a name, and what goes in comes out.
func TestC93(t *testing.T) {
	t.Parallel()
	words := []string{"a", "b-c", "a-b", "c", "A", "B-C", "..", "é", "e\u0301", "_", "__", "h", "_h", "5f", "_5f"}
	for _, sep := range []string{"/", ":", "%", "|", "+", "_", "-", "--", "__", ".", "$"} {
		words = append(words, "a"+sep+"b", "b"+sep+"c", "a"+sep, sep+"c", sep, "a"+sep+"b"+sep+"c")
	}
	for _, n := range []int{30, 31, 32, 60, 61, 62, 63, 64, 127, 128} {
		words = append(words, strings.Repeat("x", n), strings.Repeat("_", n))
	}
	seen := map[string]Cell{}
	for _, user := range words {
		for _, model := range words {
			c := Cell{user, model}
			name, err := Encode(c)
			if err != nil {
				t.Fatalf("%q: %v", c, err)
			}
			if !nameSyntax.MatchString(name) {
				t.Fatalf("%q: %q is no lite topic", c, name)
			}
			if other, taken := seen[name]; taken && other != c {
				t.Fatalf("%q and %q share the lite topic %q", other, c, name)
			}
			seen[name] = c
			if got, err := Resolve(name, user, model); err != nil || got != c {
				t.Fatalf("%q came out as %q, %v", c, got, err)
			}
		}
	}
	if len(seen) < len(words) {
		t.Fatalf("only %d names", len(seen))
	}
}

func TestC93Refused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "*", "a\x00", "\n", "a ", strings.Repeat("x", 10<<10), "\xc3"} {
		if name, err := Encode(Cell{s, "m"}); !errors.Is(err, ErrUser) {
			t.Errorf("user %.20q became %q, %v", s, name, err)
		}
		if name, err := Encode(Cell{"u", s}); !errors.Is(err, ErrModel) {
			t.Errorf("model %.20q became %q, %v", s, name, err)
		}
	}
	if err := CheckName(Wildcard); !errors.Is(err, ErrName) {
		t.Errorf("the wildcard is a name: %v", err)
	}
}

// TestEncodeGolden pins the names: another program, or the next version of this one,
// must find the same buckets.
func TestEncodeGolden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cell Cell
		want string
	}{
		{Cell{"alice", "gpt-4o"}, "alice__gpt-4o"},
		{Cell{"a_b", "c"}, "a_5fb__c"},
		{Cell{"a", "_"}, "a___5f"},
		{Cell{"bob@example.com", "org/m:1"}, "bob_40example_2ecom__org_2fm_3a1"},
		{Cell{"é", "m"}, "_c3_a9__m"},
		{Cell{strings.Repeat("u", 60), "mm"}, strings.Repeat("u", 60) + "__mm"},
		{Cell{strings.Repeat("u", 60), "mmm"}, "_h2eo3vf2s2jpwtdg7vyoi4nt7gaqb6sinb3vll6so5cyeokrtpwwq"},
	} {
		if got, err := Encode(c.cell); err != nil || got != c.want {
			t.Errorf("%q: got %q, %v, want %q", c.cell, got, err, c.want)
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "a", "tenant-1", "a_b", "__", "a__", "__a", "_h" + strings.Repeat("a", 52), "a_5F__b", "a_61__b",
		"a_5__b", "a_5g__b", "a__b__c", "a___", "a____b", "_2a__m", "m___2a", "_00__m", "_20__m", "_c3__m",
		strings.Repeat("u", 62) + "__m",
	} {
		if c, ok := Decode(name); ok {
			t.Errorf("%q decoded to %q", name, c)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	hashedCell := Cell{strings.Repeat("u", 100), "m"}
	hashedName, err := Encode(hashedCell)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, user, model string
		want              Cell
		err               error
	}{
		{name: "alice__gpt-4o", want: Cell{"alice", "gpt-4o"}},
		{name: "alice__gpt-4o", user: "alice", model: "gpt-4o", want: Cell{"alice", "gpt-4o"}},
		{name: "alice__gpt-4o", user: "bob", model: "gpt-4o", err: ErrCell},
		{name: "alice__gpt-4o", user: "alice", err: ErrModel},
		{name: "alice__gpt-4o", model: "gpt-4o", err: ErrUser},
		{name: "tenant-1", want: Cell{User: "tenant-1"}},
		{name: "tenant-1", user: "a", model: "b", err: ErrCell},
		{name: hashedName, user: hashedCell.User, model: hashedCell.Model, want: hashedCell},
		{name: hashedName, want: Cell{User: hashedName}},
		{name: hashedName, user: hashedCell.User, model: "n", err: ErrCell},
		{name: "a__m", user: "*", model: "m", err: ErrUser},
	} {
		got, err := Resolve(c.name, c.user, c.model)
		if !errors.Is(err, c.err) || got != c.want {
			t.Errorf("Resolve(%q, %q, %q) = %q, %v, want %q, %v", c.name, c.user, c.model, got, err, c.want, c.err)
		}
	}
}

// cells draws cells that are close to each other and full of the escape's own bytes.
func cells() *rapid.Generator[Cell] {
	word := rapid.OneOf(
		rapid.StringMatching(`[a_h\-5f]{1,12}`),
		rapid.StringMatching(`[a-zA-Z0-9_/:.@é日]{1,40}`),
		rapid.StringN(1, 64, 128),
	)
	return rapid.Custom(func(t *rapid.T) Cell {
		return Cell{
			word.Filter(func(s string) bool { return CheckUser(s) == nil }).Draw(t, "user"),
			word.Filter(func(s string) bool { return CheckModel(s) == nil }).Draw(t, "model"),
		}
	})
}

func TestEncodeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := cells().Draw(t, "a"), cells().Draw(t, "b")
		na, err := Encode(a)
		if err != nil {
			t.Fatal(err)
		}
		nb, err := Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		if (na == nb) != (a == b) {
			t.Fatalf("%q is %q, %q is %q", a, na, b, nb)
		}
		if CheckName(na) != nil {
			t.Fatalf("%q is %q, no lite topic", a, na)
		}
		got, ok := Decode(na)
		if plain := !strings.HasPrefix(na, hashPrefix); ok != plain || ok && got != a {
			t.Fatalf("%q is %q, decoded to %q, %v", a, na, got, ok)
		}
	})
}

// FuzzDecode: what decodes is exactly what Encode would have written.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "a__b", "a_5fb__c", "_h", "____", "_2a__a", "a__b_", "a_5F__b", "é__b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, ok := Decode(name)
		if !ok {
			return
		}
		if back, err := Encode(c); err != nil || back != name {
			t.Fatalf("%q decoded to %q, which is %q, %v", name, c, back, err)
		}
	})
}

func ExampleEncode() {
	name, _ := Encode(Cell{User: "alice@example.com", Model: "gpt-4o"})
	fmt.Println(name)
	// Output: alice_40example_2ecom__gpt-4o
}

func BenchmarkEncode(b *testing.B) {
	c := Cell{"alice@example.com", "gpt-4o"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(c); err != nil {
			b.Fatal(err)
		}
	}
}
