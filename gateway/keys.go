package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/broker/lite"
)

// ErrKeys is wrapped by every fault of a key document.
var ErrKeys = errors.New("gateway: malformed key file")

const (
	// secretPrefix makes a key recognisable to secret scanners.
	secretPrefix = "sk-penstock-" //nolint:gosec // a prefix, not a secret
	secretBytes  = 32
	secretMax    = 512 // longer ones are not even hashed
	keyNameMax   = 128
	keyFileMax   = 64 << 20 // bytes
)

// KeyEntry is one key as its file has it. The key itself is written nowhere: it has 256 random bits, so its plain SHA-256
// tells nothing about it, and a slow hash would only slow down the gateway.
type KeyEntry struct {
	User   string `yaml:"user" json:"user"`
	SHA256 string `yaml:"sha256" json:"sha256"` // of the whole key, hex
	// Name is for people, and for a policy that gives the key an importance of its own (importance: {key: NAME}). Keys that
	// share a name share that importance.
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
}

// keyDocument is the key file: YAML, or JSON as a part of it.
type keyDocument struct {
	Keys []KeyEntry `yaml:"keys"`
}

// NewKey makes a key for user. The secret is shown once, to whoever is to use it; the entry goes into the key file. name may be
// empty, see KeyEntry.
func NewKey(user, name string) (secret string, entry KeyEntry, err error) {
	random := make([]byte, secretBytes)
	if _, err := rand.Read(random); err != nil {
		return "", KeyEntry{}, fmt.Errorf("make key: %w", err)
	}
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	entry = KeyEntry{User: user, SHA256: hashKey(secret), Name: name}
	_, err = entry.check()
	return secret, entry, err
}

func hashKey(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func (e KeyEntry) check() (sum [sha256.Size]byte, err error) {
	if err := lite.CheckUser(e.User); err != nil {
		return sum, fmt.Errorf("%w: user: %w", ErrKeys, err)
	}
	if len(e.Name) > keyNameMax {
		return sum, fmt.Errorf("%w: name: %d bytes, at most %d", ErrKeys, len(e.Name), keyNameMax)
	}
	raw, err := hex.DecodeString(e.SHA256)
	if err != nil || len(raw) != sha256.Size {
		return sum, fmt.Errorf("%w: sha256: want %d hexadecimal digits", ErrKeys, 2*sha256.Size)
	}
	return [sha256.Size]byte(raw), nil
}

// KeySet is an immutable set of keys.
type KeySet struct {
	owners map[[sha256.Size]byte]owned
}

// owned is one key and whose it is.
type owned struct {
	sum   [sha256.Size]byte
	owner Owner
}

// NewKeySet checks entries and makes a set of them. One key may not have two owners.
func NewKeySet(entries ...KeyEntry) (*KeySet, error) {
	s := &KeySet{owners: make(map[[sha256.Size]byte]owned, len(entries))}
	for i, e := range entries {
		sum, err := e.check()
		if err != nil {
			return nil, fmt.Errorf("keys[%d]: %w", i, err)
		}
		if _, twice := s.owners[sum]; twice {
			return nil, fmt.Errorf("keys[%d]: %w: sha256: the same key stands further up", i, ErrKeys)
		}
		s.owners[sum] = owned{sum: sum, owner: Owner{User: e.User, Key: e.Name}}
	}
	return s, nil
}

// ParseKeys reads a key document: {keys: [{user, sha256, name}]}. Unknown fields are errors: a misspelt one would silently
// lock somebody out. An empty document has no keys.
func ParseKeys(data []byte) (*KeySet, error) {
	entries, err := parseEntries(data)
	if err != nil {
		return nil, err
	}
	return NewKeySet(entries...)
}

func parseEntries(data []byte) ([]KeyEntry, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var doc keyDocument
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s", ErrKeys, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var more yaml.Node
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: a second document follows the first", ErrKeys)
	}
	return doc.Keys, nil
}

// Owner returns whose secret is. The look-up is by hash, and the hash of a guess cannot be steered towards that of a key,
// so its time tells nothing; the comparison after it takes constant time all the same.
func (s *KeySet) Owner(secret string) (Owner, bool) {
	if secret == "" || len(secret) > secretMax {
		return Owner{}, false
	}
	sum := sha256.Sum256([]byte(secret))
	o, found := s.owners[sum]
	if !found || subtle.ConstantTimeCompare(sum[:], o.sum[:]) != 1 {
		return Owner{}, false
	}
	return o.owner, true
}

// User returns the user who owns secret.
func (s *KeySet) User(secret string) (string, bool) {
	o, ok := s.Owner(secret)
	return o.User, ok
}

// Len is the number of keys.
func (s *KeySet) Len() int { return len(s.owners) }
