package rpc

import (
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// Notices carries the broker's word to clients that did not ask. It is made before
// the broker, which needs it when it is opened, and handed to the Server, which
// needs the broker.
type Notices struct {
	clients *clients
}

// NewNotices makes the link between one broker and one server.
func NewNotices() *Notices { return &Notices{clients: newClients()} }

// Unsubscribe tells a client that it lost a lite topic to another one. It has the
// form of broker.Options.OnUnsubscribe and never blocks: a client that cannot be
// told now brings the name up again with its next COMPLETE_ADD, and is told then.
func (n *Notices) Unsubscribe(client, _, _, name string) {
	commands := n.clients.notifiable(client)
	if commands == nil {
		return
	}
	select {
	case commands <- unsubscribeCommand(name):
	default:
	}
}

func unsubscribeCommand(name string) *v2.TelemetryCommand {
	return &v2.TelemetryCommand{
		Status: statusOf(nil),
		Command: &v2.TelemetryCommand_NotifyUnsubscribeLiteCommand{
			NotifyUnsubscribeLiteCommand: &v2.NotifyUnsubscribeLiteCommand{LiteTopic: name},
		},
	}
}
