package rpc

import (
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker/lite"
)

// checkNames checks the parent topic and the group of a consumer's request.
func checkNames(topic, group *v2.Resource) error {
	if err := lite.CheckTopic(topic.GetName()); err != nil {
		return err
	}
	return lite.CheckGroup(group.GetName())
}
