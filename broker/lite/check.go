package lite

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckName accepts what RocketMQ's proxy accepts as a lite topic:
// ^[a-zA-Z0-9_-]{1,64}$. Errors wrap ErrName.
func CheckName(name string) error {
	return checkASCII(name, MaxNameBytes, isNameByte, "letters, digits, '_' and '-'", ErrName)
}

// CheckTopic accepts the name of a parent topic: ^[%|a-zA-Z0-9_-]{1,127}$, and none
// that RocketMQ keeps for itself. Errors wrap ErrTopic.
func CheckTopic(topic string) error {
	if err := checkASCII(topic, MaxTopicBytes, isTopicByte, "letters, digits, '%', '|', '_' and '-'", ErrTopic); err != nil {
		return err
	}
	if isSystemTopic(topic) {
		return fmt.Errorf("%w: %q is a system topic", ErrTopic, topic)
	}
	return nil
}

// CheckGroup accepts the name of a consumer group: ^[%|a-zA-Z0-9_-]{1,120}$, and
// none that RocketMQ keeps for itself. Errors wrap ErrGroup.
func CheckGroup(group string) error {
	if err := checkASCII(group, MaxGroupBytes, isTopicByte, "letters, digits, '%', '|', '_' and '-'", ErrGroup); err != nil {
		return err
	}
	if isSystemGroup(group) {
		return fmt.Errorf("%w: %q is a system group", ErrGroup, group)
	}
	return nil
}

// CheckUser accepts 1 to 128 bytes of UTF-8 without control characters, without
// space at either end, and not the wildcard. Errors wrap ErrUser.
func CheckUser(user string) error { return checkText(user, MaxUserBytes, ErrUser) }

// CheckModel is CheckUser for models. Errors wrap ErrModel.
func CheckModel(model string) error { return checkText(model, MaxModelBytes, ErrModel) }

func checkASCII(s string, limit int, ok func(byte) bool, allowed string, sentinel error) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: it is empty, want 1 to %d bytes", sentinel, limit)
	case len(s) > limit:
		return fmt.Errorf("%w: it has %d bytes, at most %d", sentinel, len(s), limit)
	}
	for i := range len(s) {
		if !ok(s[i]) {
			return fmt.Errorf("%w: %q has byte 0x%02x at %d, allowed are %s", sentinel, s, s[i], i, allowed)
		}
	}
	return nil
}

func checkText(s string, limit int, sentinel error) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: it is empty, want 1 to %d bytes", sentinel, limit)
	case len(s) > limit:
		return fmt.Errorf("%w: it has %d bytes, at most %d", sentinel, len(s), limit)
	case s == Wildcard:
		return fmt.Errorf("%w: %q is the wildcard", sentinel, s)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %q is not UTF-8", sentinel, s)
	case strings.TrimSpace(s) != s:
		return fmt.Errorf("%w: %q begins or ends with space", sentinel, s)
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return fmt.Errorf("%w: %q has a control character at byte %d", sentinel, s, i)
	}
	return nil
}

func isPlainByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-'
}

func isNameByte(c byte) bool { return isPlainByte(c) || c == '_' }

func isTopicByte(c byte) bool { return isNameByte(c) || c == '%' || c == '|' }

// isSystemTopic follows TopicValidator of apache/rocketmq.
func isSystemTopic(topic string) bool {
	switch topic {
	case "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
		"RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
		"SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT":
		return true
	}
	return strings.HasPrefix(topic, "rmq_sys_")
}

// isSystemGroup follows MixAll.isSysConsumerGroup of apache/rocketmq.
func isSystemGroup(group string) bool {
	return strings.HasPrefix(group, "CID_RMQ_SYS_")
}
