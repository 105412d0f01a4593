package gateway

import (
	"net/http"
	"slices"
	"time"
)

// modelList is the configured models, in order. Immutable.
type modelList struct {
	names []string
	since time.Time // "created" of each: nobody knows better
}

func newModelList(names []string, now time.Time) modelList {
	return modelList{names: slices.Clone(names), since: now}
}

// model is OpenAI's model object.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// check refuses a model that is not served. With no list every model is.
func (l modelList) check(name string) error {
	if len(l.names) > 0 && !slices.Contains(l.names, name) {
		return refuse(errModelUnknown, "model", "the model %q does not exist", name)
	}
	return nil
}

func (l modelList) object(name string) model {
	return model{ID: name, Object: "model", Created: l.since.Unix(), OwnedBy: "penstock"}
}

func (g *Gateway) listModels(c *call) error {
	data := make([]model, len(g.models.names))
	for i, name := range g.models.names {
		data[i] = g.models.object(name)
	}
	return c.json(http.StatusOK, map[string]any{"object": "list", "data": data})
}

func (g *Gateway) getModel(c *call) error {
	name := c.r.PathValue("model")
	if !slices.Contains(g.models.names, name) {
		return refuse(errModelUnknown, "model", "the model %q does not exist", name)
	}
	return c.json(http.StatusOK, g.models.object(name))
}
