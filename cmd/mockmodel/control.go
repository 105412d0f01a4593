package mockmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
)

const controlBytes = 1 << 20 // of a control request's body

func (s *Server) controlRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /control/stats", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Stats())
	})
	mux.HandleFunc("GET /control/behaviour", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Behaviour())
	})
	mux.HandleFunc("GET /control/calls", s.getCalls)
	mux.HandleFunc("PATCH /control/behaviour", s.patchBehaviour)
	mux.HandleFunc("POST /control/rules", s.postRule)
	mux.HandleFunc("DELETE /control/rules", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearRules()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /control/reset", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	})
}

func (s *Server) getCalls(w http.ResponseWriter, r *http.Request) {
	var after int64
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			refuseControl(w, errors.New("after: want a number"))
			return
		}
	}
	writeJSON(w, http.StatusOK, object{"calls": s.Calls(after)})
}

func (s *Server) patchBehaviour(w http.ResponseWriter, r *http.Request) {
	b := s.Behaviour()
	err := readControl(w, r, &b)
	if err == nil {
		err = s.SetBehaviour(b)
	}
	if err != nil {
		refuseControl(w, err)
		return
	}
	writeJSON(w, http.StatusOK, b)
}

func (s *Server) postRule(w http.ResponseWriter, r *http.Request) {
	var doc struct {
		Model    string          `json:"model"`
		User     string          `json:"user"`
		Contains string          `json:"contains"`
		Times    int             `json:"times"`
		Set      json.RawMessage `json:"set"`
	}
	err := readControl(w, r, &doc)
	if err == nil && doc.Times < 0 {
		err = errors.New("times: want 0 or more")
	}
	if err == nil {
		_, err = overlay(doc.Set, s.Behaviour())
	}
	if err != nil {
		refuseControl(w, err)
		return
	}
	s.AddRule(Rule{
		Model: doc.Model, User: doc.User, Contains: doc.Contains, Times: doc.Times,
		Apply: func(b *Behaviour) {
			if changed, err := overlay(doc.Set, *b); err == nil { // checked above
				*b = changed
			}
		},
	})
	w.WriteHeader(http.StatusNoContent)
}

// overlay is b with the fields that set holds.
func overlay(set json.RawMessage, b Behaviour) (Behaviour, error) {
	if len(set) > 0 {
		if err := decodeStrict(set, &b); err != nil {
			return Behaviour{}, err
		}
	}
	return b, b.Validate()
}

func readControl(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, controlBytes))
	if err != nil {
		return err
	}
	return decodeStrict(body, into)
}

func decodeStrict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func refuseControl(w http.ResponseWriter, err error) {
	writeError(w, http.StatusBadRequest, "invalid_request_error", "bad_control", err.Error())
}
