package rpc

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
)

// Every accepted message can be received: the largest body with the largest properties fits
// the default receive limit of a gRPC client. A body of 4 MiB did not; it was delivered 160
// times in a minute, and no attempt was counted.
func TestTheLargestMessageIsReceivedWithGRPCsDefaultLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		largest := func(m *v2.Message) {
			m.Body = make([]byte, broker.DefaultMaxBodyBytes)
			m.UserProperties = map[string]string{}
			for i := range maxUserProperties {
				m.UserProperties[fmt.Sprintf("key-%03d", i)] = strings.Repeat("v", 100)
			}
			m.SystemProperties.TraceContext = new(strings.Repeat("t", 2000))
		}
		for range 2 {
			expectCode(t, c.send(strings.Repeat("b", 60), strings.Repeat("i", 200), largest).GetStatus(), v2.Code_OK)
			expectCode(t, c.send(strings.Repeat("c", 60), strings.Repeat("i", 200), largest).GetStatus(), v2.Code_OK)
		}
		got := c.receive().messages // two messages in one answer
		if len(got) != 2 || len(got[0].GetBody()) != broker.DefaultMaxBodyBytes {
			t.Fatalf("%d messages", len(got))
		}
		out := c.send("d", "id", func(m *v2.Message) { m.Body = make([]byte, broker.DefaultMaxBodyBytes+1) })
		expectCode(t, out.GetStatus(), v2.Code_MESSAGE_BODY_TOO_LARGE)
	})
}
