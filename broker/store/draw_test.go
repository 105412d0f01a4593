package store

import (
	"math"
	"reflect"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
)

func drawTime(t *rapid.T) time.Time {
	ms := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, maxMillis)).Draw(t, "ms")
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func text(t *rapid.T) string { return rapid.StringN(0, 40, -1).Draw(t, "text") }

func texts(t *rapid.T) []string {
	return nilIfEmpty(rapid.SliceOfN(rapid.StringN(0, 20, -1), 0, 5).Draw(t, "texts"))
}

func number[T ~int | ~int64](t *rapid.T) T {
	return T(rapid.Int64Range(0, math.MaxInt64).Draw(t, "number"))
}

func nilIfEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func drawMessage(t *rapid.T) Message {
	return Message{
		ID: text(t), Tag: text(t), Keys: texts(t), BodyEncoding: rapid.Byte().Draw(t, "encoding"),
		Properties: nilIfEmpty(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Property {
			return Property{text(t), text(t)}
		}), 0, 4).Draw(t, "properties")),
		BornHost: text(t), TraceContext: text(t), Born: drawTime(t), Stored: drawTime(t), Deadline: drawTime(t),
		Body: someBytes.Draw(t, "body"),
	}
}

func drawBucket(t *rapid.T) Bucket {
	b := Bucket{
		ID: rapid.Uint64().Draw(t, "id"), Name: text(t), Level: rapid.Byte().Draw(t, "level"), Tail: rapid.Uint64().Draw(t, "tail"),
		Bytes: number[int64](t), Created: drawTime(t), LastActive: drawTime(t), Expiry: drawTime(t),
		Served: rapid.Bool().Draw(t, "served"),
	}
	b.Head = rapid.Uint64Range(0, b.Tail).Draw(t, "head")
	switch rapid.IntRange(0, 2).Draw(t, "cell") {
	case 0:
		b.Cell = lite.Cell{User: b.Name}
	case 1:
		b.Cell = lite.Cell{User: text(t), Model: text(t)}
	case 2:
		b.Name, b.Cell = "u__m", lite.Cell{User: "u", Model: "m"}
	}
	return b
}

func drawTopic(t *rapid.T) Topic {
	return Topic{
		ID: rapid.Uint16().Draw(t, "id"), Name: text(t), TTL: number[time.Duration](t), ExpireBacklog: rapid.Bool().Draw(t, "b"),
		MaxMessages: number[int](t), MaxBytes: number[int64](t), MaxBuckets: number[int](t), MaxWaiters: number[int](t),
		MaxSubscriptions: number[int](t), Created: drawTime(t), Auto: rapid.Bool().Draw(t, "auto"),
		MaxUserBuckets: number[int](t), UnservedTTL: number[time.Duration](t),
	}
}

func drawGroup(t *rapid.T) Group {
	return Group{
		ID: rapid.Uint32().Draw(t, "id"), Name: text(t), Topic: text(t), Wildcard: rapid.Bool().Draw(t, "w"),
		Exclusive: rapid.Bool().Draw(t, "e"), StartLatest: rapid.Bool().Draw(t, "l"), InFlight: number[int](t),
		MaxAttempts: number[int](t), ClientQuota: number[int](t), MaxSuspend: number[time.Duration](t), Created: drawTime(t),
		Unlimited: rapid.Bool().Draw(t, "u"), Auto: rapid.Bool().Draw(t, "auto"),
		Retention: number[time.Duration](t), Idle: number[time.Duration](t),
	}
}

func drawCursor(t *rapid.T) Cursor {
	return Cursor{
		Group: rapid.Uint32().Draw(t, "group"), Bucket: rapid.Uint64().Draw(t, "bucket"), Floor: rapid.Uint64().Draw(t, "floor"),
		Settled: nilIfEmpty(rapid.SliceOfN(rapid.Uint64(), 0, 5).Draw(t, "settled")),
		Returned: nilIfEmpty(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Return {
			return Return{rapid.Uint64().Draw(t, "offset"), rapid.Uint32().Draw(t, "attempts")}
		}), 0, 5).Draw(t, "returned")),
	}
}

func drawLease(t *rapid.T) Lease {
	return Lease{
		Group: rapid.Uint32().Draw(t, "group"), Bucket: rapid.Uint64().Draw(t, "bucket"), Offset: rapid.Uint64().Draw(t, "offset"),
		Until: drawTime(t), First: drawTime(t), Attempt: rapid.Uint32().Draw(t, "attempt"), Token: rapid.Uint64().Draw(t, "token"),
		Client: text(t), AutoRenew: rapid.Bool().Draw(t, "renew"), Ticket: nilIfEmpty(someBytes.Draw(t, "ticket")),
	}
}

func drawAccount(t *rapid.T) Account {
	return Account{
		Group: rapid.Uint32().Draw(t, "group"), Scope: rapid.Byte().Draw(t, "scope"), Name: text(t),
		Data: nilIfEmpty(someBytes.Draw(t, "data")),
	}
}

func drawHold(t *rapid.T) Hold {
	return Hold{
		Group: rapid.Uint32().Draw(t, "group"), Scope: rapid.Byte().Draw(t, "scope"), Name: text(t),
		Until: drawTime(t), By: text(t), Reason: text(t),
	}
}

func drawExpiry(t *rapid.T) Expiry {
	return Expiry{
		At:     time.Unix(rapid.Int64Range(0, maxMillis/1000).Draw(t, "at"), 0).UTC(),
		Bucket: rapid.Uint64().Draw(t, "bucket"), Name: text(t),
	}
}

func drawDeadLetter(t *rapid.T) DeadLetter {
	m := drawMessage(t)
	return DeadLetter{
		Group: rapid.Uint32().Draw(t, "group"), Seq: rapid.Uint64().Draw(t, "seq"), Topic: text(t), Lite: text(t),
		Bucket: rapid.Uint64().Draw(t, "bucket"), Offset: rapid.Uint64().Draw(t, "offset"),
		Attempts: rapid.Uint32().Draw(t, "attempts"), Reason: text(t), At: drawTime(t), Message: &m,
	}
}

func drawSubscription(t *rapid.T) Subscription {
	return Subscription{
		Group: rapid.Uint32().Draw(t, "group"), Client: text(t), Wildcard: rapid.Bool().Draw(t, "w"), Names: texts(t),
		Version: rapid.Int64().Draw(t, "version"), Updated: drawTime(t),
	}
}

func drawDead(t *rapid.T) Dead {
	d := Dead{Bucket: rapid.Uint64().Draw(t, "bucket"), Start: DeadPageSize * rapid.Uint64Range(0, 1<<40).Draw(t, "page")}
	for range rapid.IntRange(0, 6).Draw(t, "stretches") {
		from := rapid.IntRange(0, DeadPageSize-1).Draw(t, "from")
		for at := from; at < min(DeadPageSize, from+rapid.IntRange(1, DeadPageSize).Draw(t, "length")); at++ {
			d.Page[at/64] |= 1 << (at % 64)
		}
	}
	return d
}

// extremeTime draws any instant a time.Time can hold.
func extremeTime(t *rapid.T) time.Time {
	return rapid.OneOf(
		rapid.SampledFrom([]time.Time{
			{},
			time.Unix(0, 0), time.Unix(0, -1), time.UnixMilli(maxMillis + 1), time.UnixMilli(math.MaxInt64), time.UnixMilli(math.MinInt64),
			time.Date(3000, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
		}),
		rapid.Custom(func(t *rapid.T) time.Time {
			return time.Unix(rapid.Int64().Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		}),
	).Draw(t, "time")
}

// drawAny sets v to any value of its type, meaningful or not.
func drawAny(t *rapid.T, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(extremeTime(t)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			drawAny(t, f)
		}
	case reflect.Interface: // an error, which is not stored
	case reflect.Pointer: // of a dead letter's message; never nil
		v.Set(reflect.New(v.Type().Elem()))
		drawAny(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 4).Draw(t, "length"), 4))
		for i := range v.Len() {
			drawAny(t, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			drawAny(t, v.Index(i))
		}
	case reflect.String:
		v.SetString(string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "text")))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Range(0, math.MaxUint64>>(64-v.Type().Bits())).Draw(t, "uint"))
	default:
		t.Fatalf("no values of kind %v", v.Kind())
	}
}
