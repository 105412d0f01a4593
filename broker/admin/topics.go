package admin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
)

// Topic is a parent topic. Fields that a request leaves out take their defaults.
type Topic struct {
	Name             string   `json:"name"`
	TTL              Duration `json:"ttl"`
	ExpireBacklog    bool     `json:"expire_backlog"`
	MaxMessages      int      `json:"max_messages"`
	MaxBytes         int64    `json:"max_bytes"`
	MaxBuckets       int      `json:"max_buckets"`
	MaxWaiters       int      `json:"max_waiters"`
	MaxSubscriptions int      `json:"max_subscriptions"`
}

// Topics is the answer to a list of them.
type Topics struct {
	Topics []Topic `json:"topics"`
}

func topicOf(c broker.TopicConfig) Topic {
	return Topic{
		Name: c.Name, TTL: Duration(c.TTL), ExpireBacklog: c.ExpireBacklog, MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes,
		MaxBuckets: c.MaxBuckets, MaxWaiters: c.MaxWaiters, MaxSubscriptions: c.MaxSubscriptions,
	}
}

func (t Topic) config() broker.TopicConfig {
	return broker.TopicConfig{
		Name: t.Name, TTL: time.Duration(t.TTL), ExpireBacklog: t.ExpireBacklog, MaxMessages: t.MaxMessages, MaxBytes: t.MaxBytes,
		MaxBuckets: t.MaxBuckets, MaxWaiters: t.MaxWaiters, MaxSubscriptions: t.MaxSubscriptions,
	}
}

func (s *Server) listTopics(r *http.Request) (int, any, error) {
	if _, err := parameters(r); err != nil {
		return 0, nil, err
	}
	out := Topics{Topics: []Topic{}}
	for _, c := range s.broker.Topics() {
		out.Topics = append(out.Topics, topicOf(c))
	}
	return http.StatusOK, out, nil
}

func (s *Server) topic(name string) (Topic, error) {
	c, ok := s.broker.Topic(name)
	if !ok {
		return Topic{}, fmt.Errorf("%w: %q", broker.ErrTopicNotFound, name)
	}
	return topicOf(c), nil
}

func (s *Server) getTopic(r *http.Request) (int, any, error) {
	t, err := s.topic(r.PathValue("topic"))
	return http.StatusOK, t, err
}

func (s *Server) createTopic(r *http.Request) (int, any, error) {
	var t Topic
	if err := decode(r, &t); err != nil {
		return 0, nil, err
	}
	if err := s.broker.CreateTopic(r.Context(), t.config()); err != nil {
		return 0, nil, err
	}
	t, err := s.topic(t.Name)
	return http.StatusCreated, t, err
}

func (s *Server) deleteTopic(r *http.Request) (int, any, error) {
	err := s.broker.DeleteTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, struct{}{}, err
}
