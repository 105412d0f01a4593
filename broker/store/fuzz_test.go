package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

func fuzz(f *testing.F, name string) {
	f.Helper()
	for _, c := range codecs() {
		if c.name != name {
			continue
		}
		key, value := c.encode(c.sample)
		f.Add(key, value)
		f.Add(key[:1], value[:1])
		f.Add(key, value[:len(value)/2])
		f.Add(key, append([]byte{1}, bytes.Repeat([]byte{0xff}, 12)...))
		for _, r := range []oldRow{oldLease, oldGroup} {
			if r.codec == name {
				old, _ := hex.DecodeString(r.value)
				f.Add(key, old)
			}
		}
		f.Fuzz(func(t *testing.T, key, value []byte) { checkDecode(t, c, key, value) })
		return
	}
	f.Fatalf("no codec %q", name)
}

func FuzzMessage(f *testing.F)      { fuzz(f, "message") }
func FuzzBucket(f *testing.F)       { fuzz(f, "bucket") }
func FuzzTopic(f *testing.F)        { fuzz(f, "topic") }
func FuzzGroup(f *testing.F)        { fuzz(f, "group") }
func FuzzCursor(f *testing.F)       { fuzz(f, "cursor") }
func FuzzLease(f *testing.F)        { fuzz(f, "lease") }
func FuzzHold(f *testing.F)         { fuzz(f, "hold") }
func FuzzExpiry(f *testing.F)       { fuzz(f, "expiry") }
func FuzzDeadLetter(f *testing.F)   { fuzz(f, "deadletter") }
func FuzzSubscription(f *testing.F) { fuzz(f, "subscription") }
func FuzzDead(f *testing.F)         { fuzz(f, "dead") }
func FuzzAccount(f *testing.F)      { fuzz(f, "account") }

func FuzzMeta(f *testing.F) {
	f.Add(encodeVersion(formatVersion))
	f.Add([]byte("PENSTOCK"))
	f.Add([]byte{0, 0, 0, 9})
	f.Add(bytes.Repeat([]byte{0xff}, 11))
	f.Fuzz(func(t *testing.T, value []byte) {
		_, err1 := decodeVersion(value)
		_, err2 := decodeEpoch(value)
		_, err3 := decodeCounter(value)
		for _, err := range []error{err1, err2, err3} {
			if err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("%x: error %v does not wrap ErrCorrupt", value, err)
			}
		}
	})
}
