package main

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/cmd/node"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[node.Size]()
)

// convert turns what a file, a flag or a variable holds into what a setting is. What
// it leaves alone must fit as it is: the decoder is not allowed to guess.
func convert(from, to reflect.Type, data any) (any, error) {
	switch to {
	case from:
		return data, nil
	case durationType:
		return convertDuration(data)
	case sizeType:
		return convertSize(data)
	}
	switch to.Kind() { //nolint:exhaustive // the kinds that settings have, and strings for all others
	case reflect.Int, reflect.Int64:
		return convertInt(data)
	case reflect.Bool:
		if s, ok := data.(string); ok {
			v, err := strconv.ParseBool(s)
			if err != nil {
				return nil, fmt.Errorf("%q: want true or false", s)
			}
			return v, nil
		}
	}
	return data, nil
}

// A number without a unit is refused, unless it is zero: Go would take it for
// nanoseconds, a person for seconds.
func convertDuration(data any) (any, error) {
	switch v := data.(type) {
	case string:
		d, err := time.ParseDuration(v)
		if err != nil {
			return nil, fmt.Errorf("%q: want a number and a unit, such as 500ms, 30s, 5m, 24h", v)
		}
		return d, nil
	case int:
		if v == 0 {
			return time.Duration(0), nil
		}
	}
	return nil, fmt.Errorf("%v: want a number and a unit, such as 500ms, 30s, 5m, 24h", data)
}

func convertSize(data any) (any, error) {
	switch v := data.(type) {
	case string:
		return node.ParseSize(v)
	case int:
		if v == 0 {
			return node.Size(0), nil
		}
	}
	return nil, fmt.Errorf("%v: want a whole number and a unit, such as 64KiB, 4MiB, 1GiB", data)
}

func convertInt(data any) (any, error) {
	switch v := data.(type) {
	case string:
		n, err := strconv.Atoi(v)
		if err != nil {
			return nil, fmt.Errorf("%q: want a whole number", v)
		}
		return n, nil
	case float64:
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			return nil, fmt.Errorf("%v: want a whole number", v)
		}
		return int64(v), nil
	}
	return data, nil
}
