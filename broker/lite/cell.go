package lite

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"
)

// The name of a cell's bucket
//
//	plain   esc(user) "__" esc(model)     when that is at most 64 bytes
//	hashed  "_h" base32(SHA-256(...))     54 bytes, else
//
// esc leaves [A-Za-z0-9-] as they are and writes every other byte, '_' among them,
// as '_' and two lower-case hex digits.
//
// Invariant: different cells have different names. In esc(x) an '_' is always
// followed by two hex digits, so "__" occurs in no esc(x) nor, since no esc(x) ends
// with '_', across its end: the first "__" of a plain name is the separator, and
// esc itself can be undone. 'h' is no hex digit, so no plain name begins with "_h".
// Two hashed names are equal only if SHA-256 collides; both parts are hashed with
// their lengths, so moving a byte from one to the other is a different input.
//
// Names are compared as bytes: upper and lower case, or two Unicode forms of one
// letter, are different users.
const (
	escape     = '_'
	separator  = "__"
	hashPrefix = "_h"
	hexDigits  = "0123456789abcdef"
)

// Encode returns the lite topic that is the bucket of the cell. It refuses what
// CheckUser and CheckModel refuse.
func Encode(c Cell) (string, error) {
	if err := CheckUser(c.User); err != nil {
		return "", err
	}
	if err := CheckModel(c.Model); err != nil {
		return "", err
	}
	if escapedLen(c.User)+len(separator)+escapedLen(c.Model) > MaxNameBytes {
		return hashed(c), nil
	}
	b := make([]byte, 0, MaxNameBytes)
	b = appendEscaped(b, c.User)
	b = append(b, separator...)
	b = appendEscaped(b, c.Model)
	return string(b), nil
}

// Decode returns the cell whose plain name this is. It reports false for hashed
// names, which cannot be undone, and for names that Encode does not produce.
func Decode(name string) (Cell, bool) {
	user, model, found := strings.Cut(name, separator)
	if !found || len(name) > MaxNameBytes {
		return Cell{}, false
	}
	var c Cell
	var ok bool
	if c.User, ok = unescape(user); !ok {
		return Cell{}, false
	}
	if c.Model, ok = unescape(model); !ok {
		return Cell{}, false
	}
	if CheckUser(c.User) != nil || CheckModel(c.Model) != nil {
		return Cell{}, false
	}
	return c, true
}

// Resolve returns the cell that a message sent to the lite topic belongs to. user
// and model are its properties PropertyUser and PropertyModel, empty when absent.
//
// Properties win: hashed names have nothing else. They must be given both and must
// encode to the name, or a sender could charge its messages to someone else's row:
// errors wrap ErrCell, ErrUser or ErrModel. Without properties a plain name is decoded, and a
// name that some other client made up is a row of its own without a column.
func Resolve(name, user, model string) (Cell, error) {
	if user == "" && model == "" {
		if c, ok := Decode(name); ok {
			return c, nil
		}
		return Cell{User: name}, nil
	}
	c := Cell{User: user, Model: model}
	want, err := Encode(c)
	if err != nil {
		return Cell{}, err
	}
	if want != name {
		return Cell{}, fmt.Errorf("%w: user %q and model %q have the lite topic %q, not %q", ErrCell, user, model, want, name)
	}
	return c, nil
}

func escapedLen(s string) int {
	n := len(s)
	for i := range len(s) {
		if !isPlainByte(s[i]) {
			n += 2
		}
	}
	return n
}

func appendEscaped(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if isPlainByte(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, escape, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}

// unescape undoes appendEscaped and accepts nothing else: no upper-case digits and
// no escaped plain byte, which would give one cell two names.
func unescape(s string) (string, bool) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isPlainByte(c) {
			b.WriteByte(c)
			continue
		}
		if c != escape || i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 || isPlainByte(byte(hi<<4|lo)) {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func hashed(c Cell) string {
	b := make([]byte, 0, MaxUserBytes+MaxModelBytes+2*binary.MaxVarintLen16)
	b = binary.AppendUvarint(b, uint64(len(c.User)))
	b = append(b, c.User...)
	b = binary.AppendUvarint(b, uint64(len(c.Model)))
	b = append(b, c.Model...)
	sum := sha256.Sum256(b)
	enc := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return hashPrefix + enc.EncodeToString(sum[:])
}
