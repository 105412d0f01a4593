package rpc

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
)

// wantCodes is the table once more, by name, so that a change of it is a change of
// two files. The names are those of the packages' sentinels.
var wantCodes = map[string]struct {
	err  error
	code v2.Code
}{
	"lite.ErrName":                 {lite.ErrName, 40020},
	"lite.ErrTopic":                {lite.ErrTopic, 40002},
	"lite.ErrGroup":                {lite.ErrGroup, 40003},
	"lite.ErrCell":                 {lite.ErrCell, 40020},
	"lite.ErrUser":                 {lite.ErrUser, 40007},
	"lite.ErrModel":                {lite.ErrModel, 40007},
	"suspend.ErrNegative":          {suspend.ErrNegative, 40011},
	"suspend.ErrTooLong":           {suspend.ErrTooLong, 40011},
	"suspend.ErrScope":             {suspend.ErrScope, 40000},
	"suspend.ErrTarget":            {suspend.ErrTarget, 40000},
	"broker.ErrTopicNotFound":      {broker.ErrTopicNotFound, 40402},
	"broker.ErrGroupNotFound":      {broker.ErrGroupNotFound, 40403},
	"broker.ErrGroupBound":         {broker.ErrGroupBound, 40000},
	"broker.ErrExists":             {broker.ErrExists, 40000},
	"broker.ErrInUse":              {broker.ErrInUse, 40000},
	"broker.ErrInvalidHandle":      {broker.ErrInvalidHandle, 40013},
	"broker.ErrStaleHandle":        {broker.ErrStaleHandle, 40013},
	"broker.ErrNotQueued":          {broker.ErrNotQueued, 40401},
	"broker.ErrBucketNotFound":     {broker.ErrBucketNotFound, 40401},
	"broker.ErrScanLimit":          {broker.ErrScanLimit, 40000},
	"broker.ErrInvalidArgument":    {broker.ErrInvalidArgument, 40000},
	"lite.ErrDeadline":             {lite.ErrDeadline, 40000},
	"broker.ErrDeadlinePassed":     {broker.ErrDeadlinePassed, 40000},
	"broker.ErrBodyTooLarge":       {broker.ErrBodyTooLarge, 41301},
	"broker.ErrBucketFull":         {broker.ErrBucketFull, 42900},
	"broker.ErrBucketBytes":        {broker.ErrBucketBytes, 42900},
	"broker.ErrTooManyWaiters":     {broker.ErrTooManyWaiters, 42900},
	"broker.ErrBusy":               {broker.ErrBusy, 42900},
	"broker.ErrDiskFull":           {broker.ErrDiskFull, 50401},
	"broker.ErrTooManyBuckets":     {broker.ErrTooManyBuckets, 42901},
	"broker.ErrTooManyUserBuckets": {broker.ErrTooManyUserBuckets, 42901},
	"broker.ErrTooManyHolds":       {broker.ErrTooManyHolds, 42900},
	"broker.ErrSubscriptionQuota":  {broker.ErrSubscriptionQuota, 42902},
	"broker.ErrClosed":             {broker.ErrClosed, 50002},
	"context.DeadlineExceeded":     {context.DeadlineExceeded, 50400},
	"context.Canceled":             {context.Canceled, 50400},
}

func TestEveryErrorHasItsCode(t *testing.T) {
	if len(wantCodes) != len(statusTable) {
		t.Errorf("the table has %d rows, the test %d", len(statusTable), len(wantCodes))
	}
	for name, want := range wantCodes {
		wrapped := fmt.Errorf("operation: %w: detail", want.err)
		if got := codeOf(wrapped); got != want.code {
			t.Errorf("%s: code %v, want %v", name, got, want.code)
		}
		if st := statusOf(wrapped); st.GetMessage() != wrapped.Error() {
			t.Errorf("%s: message %q, want %q", name, st.GetMessage(), wrapped.Error())
		}
	}
	for _, c := range []struct {
		err  error
		code v2.Code
	}{
		{nil, v2.Code_OK},
		{errors.New("something else"), v2.Code_INTERNAL_SERVER_ERROR},
		{fmt.Errorf("check: %w", refuse(v2.Code_ILLEGAL_MESSAGE_TAG, "bad")), v2.Code_ILLEGAL_MESSAGE_TAG},
	} {
		if got := codeOf(c.err); got != c.code {
			t.Errorf("%v: code %v, want %v", c.err, got, c.code)
		}
	}
}

// TestEverySentinelIsInTheTable reads the packages' sources: a sentinel that is
// added there without a row here would reach clients as an internal error.
func TestEverySentinelIsInTheTable(t *testing.T) {
	for pkg, dir := range map[string]string{"broker": "..", "lite": "../lite", "suspend": "../../suspend"} {
		for _, name := range sentinels(t, dir) {
			if _, ok := wantCodes[pkg+"."+name]; !ok {
				t.Errorf("%s.%s has no row in the status table", pkg, name)
			}
		}
	}
}

// sentinels lists the exported package-level variables whose names begin with Err.
func sentinels(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for _, file := range goFiles(t, dir) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				for _, n := range s.(*ast.ValueSpec).Names {
					if strings.HasPrefix(n.Name, "Err") {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("no sentinel found in %s: the test is blind", dir)
	}
	return names
}

func TestCommonStatus(t *testing.T) {
	ok, bad := statusOf(nil), statusOf(broker.ErrInvalidHandle)
	for _, c := range []struct {
		entries []*v2.Status
		want    v2.Code
	}{
		{[]*v2.Status{ok}, v2.Code_OK},
		{[]*v2.Status{ok, ok}, v2.Code_OK},
		{[]*v2.Status{bad, bad, bad}, v2.Code_INVALID_RECEIPT_HANDLE},
		{[]*v2.Status{ok, ok, bad}, v2.Code_MULTIPLE_RESULTS},
	} {
		if got := commonStatus(c.entries).GetCode(); got != c.want {
			t.Errorf("%v: %v, want %v", c.entries, got, c.want)
		}
	}
}
