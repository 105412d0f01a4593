package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
)

// codec is one record's encode and decode, made uniform for tests.
type codec struct {
	name   string
	sample any
	draw   func(t *rapid.T) any
	encode func(r any) (key, value []byte)
	decode func(key, value []byte) (any, error)
}

func codecOf[T any](
	name string, sample T, draw func(*rapid.T) T,
	encode func(*T) (key, value []byte), decode func(key, value []byte) (T, error),
) codec {
	return codec{
		name: name, sample: sample,
		draw:   func(t *rapid.T) any { return draw(t) },
		encode: func(r any) ([]byte, []byte) { v := r.(T); return encode(&v) },
		decode: func(key, value []byte) (any, error) { return decode(key, value) },
	}
}

var (
	bucket7   = uint64(3)<<topicShift | 7
	noon      = time.Date(2026, 3, 25, 12, 0, 0, 0, time.UTC)
	someBytes = rapid.SliceOfN(rapid.Byte(), 0, 300)
)

func sampleMessage() Message {
	return Message{
		ID: "01AB", Tag: "t", Keys: []string{"k1", "k2"},
		Properties:   []Property{{"penstock-user", "alice"}, {"x", ""}},
		BodyEncoding: 1, BornHost: "10.0.0.1:5", TraceContext: "00-ab",
		Born: noon, Stored: noon.Add(time.Millisecond), Deadline: noon.Add(time.Minute),
		Body: []byte(`{"model":"m"}`),
	}
}

func codecs() []codec {
	message := sampleMessage()
	return []codec{
		codecOf("message", message, drawMessage,
			func(m *Message) ([]byte, []byte) { return appendMessageKey(nil, bucket7, 9), m.appendValue(nil) },
			func(key, value []byte) (Message, error) {
				m, err := decodeMessage(bytes.Clone(value))
				if err != nil {
					return Message{}, err
				}
				return *m, nil
			}),
		codecOf("bucket", Bucket{
			ID: bucket7, Name: "alice__m", Cell: lite.Cell{User: "alice", Model: "m"}, Level: 1, Head: 290, Tail: 300,
			Bytes: 10240, Created: noon, LastActive: noon.Add(time.Hour), Expiry: noon.Add(2 * time.Hour), Served: true,
		}, drawBucket,
			func(b *Bucket) ([]byte, []byte) {
				return appendBucketKey(nil, b.Topic(), b.Name), b.appendValue(nil)
			}, decodeBucket),
		codecOf("topic", Topic{
			ID: 3, Name: "requests", TTL: time.Hour, ExpireBacklog: true, MaxMessages: 1000, MaxBytes: 1 << 30,
			MaxBuckets: 2_000_000, MaxWaiters: 10, MaxSubscriptions: 20, Created: noon, Auto: true,
			MaxUserBuckets: 10_000, UnservedTTL: 15 * time.Minute,
		}, drawTopic,
			func(r *Topic) ([]byte, []byte) { return appendTopicKey(nil, r.Name), r.appendValue(nil) }, decodeTopic),
		codecOf("group", Group{
			ID: 5, Name: "pool", Topic: "requests", Wildcard: true, StartLatest: true, InFlight: 4, MaxAttempts: 17,
			ClientQuota: 2000, MaxSuspend: 24 * time.Hour, Created: noon, Unlimited: true,
			Auto: true, Retention: 72 * time.Hour, Idle: time.Hour,
		}, drawGroup,
			func(r *Group) ([]byte, []byte) { return appendGroupKey(nil, r.Name), r.appendValue(nil) }, decodeGroup),
		codecOf("cursor", Cursor{
			Group: 5, Bucket: bucket7, Floor: 300, Settled: []uint64{302, 305},
			Returned: []Return{{Offset: 304, Attempts: 1}, {Offset: 301, Attempts: 3}},
		}, drawCursor,
			func(r *Cursor) ([]byte, []byte) { return appendCursorKey(nil, r.Group, r.Bucket), r.appendValue(nil) }, decodeCursor),
		codecOf("lease", Lease{
			Group: 5, Bucket: bucket7, Offset: 300, Until: noon.Add(time.Minute), First: noon, Attempt: 2,
			Token: 4<<40 | 77, Client: "c@1", AutoRenew: true, Ticket: []byte{1, 2, 3},
		}, drawLease,
			func(r *Lease) ([]byte, []byte) {
				return appendLeaseKey(nil, r.Group, r.Bucket, r.Offset), r.appendValue(nil)
			}, decodeLease),
		codecOf("hold", Hold{Group: 5, Scope: 2, Name: "gpt-4o", Until: noon, By: "ops", Reason: "429"}, drawHold,
			func(r *Hold) ([]byte, []byte) {
				return appendHoldKey(nil, r.Group, r.Scope, r.Name), r.appendValue(nil)
			}, decodeHold),
		codecOf("expiry", Expiry{At: noon, Bucket: bucket7, Name: "alice__m"}, drawExpiry,
			func(r *Expiry) ([]byte, []byte) { return appendExpiryKey(nil, r.At, r.Bucket), r.appendValue(nil) }, decodeExpiry),
		codecOf("deadletter", DeadLetter{
			Group: 5, Seq: 12, Topic: "requests", Lite: "alice__m", Bucket: bucket7, Offset: 300, Attempts: 17,
			Reason: "attempts", At: noon, Message: &message,
		}, drawDeadLetter,
			func(r *DeadLetter) ([]byte, []byte) {
				return appendDeadLetterKey(nil, r.Group, r.Seq), r.appendValue(nil)
			},
			func(key, value []byte) (DeadLetter, error) {
				l, err := decodeDeadLetter(key, bytes.Clone(value))
				if err != nil {
					return DeadLetter{}, err
				}
				return *l, nil
			}),
		codecOf("subscription", Subscription{
			Group: 5, Client: "c@1", Wildcard: true, Names: []string{"a", "b"}, Version: -3, Updated: noon,
		}, drawSubscription,
			func(r *Subscription) ([]byte, []byte) {
				return appendSubscriptionKey(nil, r.Group, r.Client), r.appendValue(nil)
			}, decodeSubscription),
		codecOf("account", Account{Group: 5, Scope: 1, Name: "alice", Data: []byte{1, 0xfe, 7}}, drawAccount,
			func(r *Account) ([]byte, []byte) {
				return appendAccountKey(nil, r.Group, r.Scope, r.Name), r.appendValue(nil)
			}, decodeAccount),
		codecOf("dead", Dead{Bucket: bucket7, Start: 2 * DeadPageSize, Page: [deadWords]uint64{0: 6, 1: 1 << 63, 2: 1}}, drawDead,
			func(r *Dead) ([]byte, []byte) { return appendDeadKey(nil, r.Bucket, r.Start), r.appendValue(nil) }, decodeDead),
	}
}

// oldRow is a record as an earlier version of it was written.
type oldRow struct {
	codec      string
	key, value string // hex
	want       any
}

var (
	oldLease = oldRow{
		"lease", "07000000050003000000000007000000000000012c", "0101e0a8faa6d23380d4f6a6d23302cd80808080800103634031",
		Lease{
			Group: 5, Bucket: bucket7, Offset: 300, Until: noon.Add(time.Minute), First: noon, Attempt: 2,
			Token: 4<<40 | 77, Client: "c@1", AutoRenew: true,
		},
	}
	oldGroup = oldRow{
		"group", "03706f6f6c", "0105087265717565737473050411d00f8080bc8ac9d21380d4f6a6d233",
		Group{
			ID: 5, Name: "pool", Topic: "requests", Wildcard: true, StartLatest: true, InFlight: 4, MaxAttempts: 17,
			ClientQuota: 2000, MaxSuspend: 24 * time.Hour, Created: noon,
		},
	}
	oldGroup2 = oldRow{
		"group", "03706f6f6c", "020d087265717565737473050411d00f8080bc8ac9d21380d4f6a6d233",
		Group{
			ID: 5, Name: "pool", Topic: "requests", Wildcard: true, StartLatest: true, InFlight: 4, MaxAttempts: 17,
			ClientQuota: 2000, MaxSuspend: 24 * time.Hour, Created: noon, Unlimited: true,
		},
	}
	oldBucket = oldRow{
		"bucket", "040003616c6963655f5f6d", "0100878080808080c00101ac020a805080d4f6a6d23380b1d2a8d233808eaeaad233",
		Bucket{
			ID: bucket7, Name: "alice__m", Cell: lite.Cell{User: "alice", Model: "m"}, Level: 1, Head: 290, Tail: 300,
			Bytes: 10240, Created: noon, LastActive: noon.Add(time.Hour), Expiry: noon.Add(2 * time.Hour), Served: true,
		},
	}
	oldTopic = oldRow{
		"topic", "027265717565737473", "01010380c0e285e368e807808080800480897a0a1480d4f6a6d233",
		Topic{
			ID: 3, Name: "requests", TTL: time.Hour, ExpireBacklog: true, MaxMessages: 1000, MaxBytes: 1 << 30,
			MaxBuckets: 2_000_000, MaxWaiters: 10, MaxSubscriptions: 20, Created: noon,
		},
	}
)

// TestGoldenOld: what earlier versions wrote is read for ever, and what they could not
// have written is not.
func TestGoldenOld(t *testing.T) {
	t.Parallel()
	byName := map[string]codec{}
	for _, c := range codecs() {
		byName[c.name] = c
	}
	for _, r := range []oldRow{oldLease, oldGroup, oldGroup2, oldTopic, oldBucket} {
		key, value := unhex(t, r.key), unhex(t, r.value)
		got, err := byName[r.codec].decode(key, value)
		if err != nil || !reflect.DeepEqual(got, r.want) {
			t.Errorf("%s of an older version: got %+v, %v, want %+v", r.codec, got, err, r.want)
		}
	}
	lease := append(unhex(t, oldLease.value), 0) // a ticket behind version 1
	if _, err := byName["lease"].decode(unhex(t, oldLease.key), lease); !errors.Is(err, ErrCorrupt) {
		t.Errorf("lease of version 1 with a ticket: error %v", err)
	}
	group := unhex(t, oldGroup.value)
	group[1] |= 1 << groupUnlimited
	if _, err := byName["group"].decode(unhex(t, oldGroup.key), group); !errors.Is(err, ErrCorrupt) {
		t.Errorf("group of version 1 without limits: error %v", err)
	}
	group = unhex(t, oldGroup2.value)
	group[1] |= 1 << groupAuto
	if _, err := byName["group"].decode(unhex(t, oldGroup2.key), group); !errors.Is(err, ErrCorrupt) {
		t.Errorf("group of version 2 that was created on demand: error %v", err)
	}
	bucket := unhex(t, oldBucket.value)
	bucket[1] |= 1 << bucketServed
	if _, err := byName["bucket"].decode(unhex(t, oldBucket.key), bucket); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bucket of version 1 with the flag of version 2: error %v", err)
	}
	topic := unhex(t, oldTopic.value)
	topic[1] |= 1 << topicAuto
	if _, err := byName["topic"].decode(unhex(t, oldTopic.key), topic); !errors.Is(err, ErrCorrupt) {
		t.Errorf("topic of version 1 that was created on demand: error %v", err)
	}
}

func TestCodecRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				want := c.draw(t)
				got, err := c.decode(c.encode(want))
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("\ngot  %+v\nwant %+v", got, want)
				}
			})
		})
	}
}

// TestGolden pins the bytes on disk. If it fails you changed the format: see
// codec.go for what to do, and never update a row that a release wrote.
func TestGolden(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, c := range codecs() {
		key, value := c.encode(c.sample)
		b.WriteString(c.name + "\n  " + hex.EncodeToString(key) + "\n  " + hex.EncodeToString(value) + "\n")
	}
	b.WriteString("version\n  " + hex.EncodeToString([]byte{tableMeta, metaVersion}) + "\n  " + hex.EncodeToString(encodeVersion(formatVersion)) + "\n")
	b.WriteString("counter\n  " + hex.EncodeToString(appendCounterKey(nil, counterDeadLetter, 5)) + "\n  d804\n")

	for _, r := range []oldRow{oldLease, oldGroup, oldGroup2, oldTopic, oldBucket} {
		b.WriteString(r.codec + "-" + r.value[1:2] + "\n  " + r.key + "\n  " + r.value + "\n")
	}

	file := filepath.Join("testdata", "golden.txt")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("bytes on disk changed, %s is\n%s\nnow\n%s", file, want, b.String())
	}
	rows := strings.Fields(string(want))
	if len(rows) < 3*len(codecs()) {
		t.Fatalf("%s has %d words", file, len(rows))
	}
	for i, c := range codecs() {
		if rows[3*i] != c.name {
			t.Fatalf("row %d is %q, want %q", i, rows[3*i], c.name)
		}
		got, err := c.decode(unhex(t, rows[3*i+1]), unhex(t, rows[3*i+2]))
		if err != nil || !reflect.DeepEqual(got, c.sample) {
			t.Errorf("%s: the golden bytes decode to %+v, %v", c.name, got, err)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDecodeDamaged cuts and flips every byte of every sample.
func TestDecodeDamaged(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key, value := c.encode(c.sample)
			body := 0 // bytes at the end that have no structure
			if c.name == "message" || c.name == "deadletter" {
				body = len(sampleMessage().Body)
			}
			for n := range value[:len(value)-body] {
				if _, err := c.decode(key, value[:n]); !errors.Is(err, ErrCorrupt) {
					t.Errorf("cut to %d of %d bytes: got error %v", n, len(value), err)
				}
			}
			for i := range value {
				for bit := range 8 {
					damaged := bytes.Clone(value)
					damaged[i] ^= 1 << bit
					checkDecode(t, c, key, damaged)
				}
			}
			if body == 0 {
				if _, err := c.decode(key, append(bytes.Clone(value), 0)); !errors.Is(err, ErrCorrupt) {
					t.Errorf("a byte too many: got error %v", err)
				}
			}
		})
	}
}

// checkDecode: what decodes encodes to something that decodes the same; what does
// not is called corrupt.
func checkDecode(t *testing.T, c codec, key, value []byte) {
	t.Helper()
	r, err := c.decode(key, value)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x: error %v does not wrap ErrCorrupt", value, err)
		}
		return
	}
	again, err := c.decode(c.encode(r))
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("%x decodes to %+v, which comes back as %+v, %v", value, r, again, err)
	}
}

// TestUntilRoundsUp: an instant before which something must not happen never comes
// back earlier; one that has passed never comes back later.
func TestUntilRoundsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(0, rapid.Int64Range(1, math.MaxInt64-int64(time.Second)).Draw(t, "ns"))
		up := (&decoder{rest: string(appendUntil(nil, at))}).time()
		if up.Before(at) || up.Sub(at) >= time.Millisecond {
			t.Fatalf("until %v came back as %v", at, up)
		}
		down := (&decoder{rest: string(appendTime(nil, at))}).time()
		if at.After(time.UnixMilli(1)) && (down.After(at) || at.Sub(down) >= time.Millisecond) {
			t.Fatalf("time %v came back as %v", at, down)
		}
		if s := time.Unix(int64(expirySecond(at)), 0); s.Before(at) || s.Sub(at) >= time.Second {
			t.Fatalf("expiry %v came back as %v", at, s)
		}
	})
}

// TestKeyOrder: the order of keys is the order of their fields.
func TestKeyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		for _, keys := range [][2][]byte{
			{appendMessageKey(nil, bucket7, a), appendMessageKey(nil, bucket7, b)},
			{appendMessageKey(nil, a, b), appendMessageKey(nil, b, b)},
			{appendCursorKey(nil, 5, a), appendCursorKey(nil, 5, b)},
			{appendDeadLetterKey(nil, 5, a), appendDeadLetterKey(nil, 5, b)},
		} {
			if got, want := bytes.Compare(keys[0], keys[1]), compare(a, b); got != want {
				t.Fatalf("%x and %x compare as %d, want %d", keys[0], keys[1], got, want)
			}
		}
	})
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, want string }{
		{"\x01", "\x02"}, {"\x01\x02", "\x01\x03"}, {"\x01\xff", "\x02"}, {"\x01\xff\xff", "\x02"},
	} {
		if got := string(after([]byte(c.prefix))); got != c.want {
			t.Errorf("after(%q) = %q, want %q", c.prefix, got, c.want)
		}
	}
}

// TestEncoderNeverWritesWhatItsDecoderRefuses fills every field of every record with any
// value of its type: years before 1 and after 9999, negative numbers, text that is not
// UTF-8. Every written record reads back, and a second encoding gives the same bytes.
func TestEncoderNeverWritesWhatItsDecoderRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				r := reflect.New(reflect.TypeOf(c.sample)).Elem()
				drawAny(t, r)
				key, value := c.encode(r.Interface())
				got, err := c.decode(key, value)
				if err != nil {
					t.Fatalf("%+v was written as %x: %v", r, value, err)
				}
				key2, value2 := c.encode(got)
				if !bytes.Equal(key, key2) || !bytes.Equal(value, value2) {
					t.Fatalf("%+v was written as %x %x, then as %x %x", r, key, value, key2, value2)
				}
			})
		})
	}
}

// TestTimesAfter2262OfOlderStoresAreRead: a program before this one wrote the year 3000
// as it came, in messages and in the dead letters made of them.
func TestTimesAfter2262OfOlderStoresAreRead(t *testing.T) {
	t.Parallel()
	for _, ms := range []uint64{uint64(maxMillis) + 1, 32_503_680_000_000, math.MaxInt64, math.MaxUint64} {
		d := &decoder{rest: string(binary.AppendUvarint(nil, ms))}
		if got := d.time(); d.err("time") != nil || !got.Equal(maxTime) {
			t.Errorf("%d ms: got %v, %v, want %v", ms, got, d.err("time"), maxTime)
		}
	}
}
