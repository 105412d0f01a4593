package reply

// Paths that a gateway puts into requests. A request of /v1/enqueue has no path: it goes to the address of its downstream.
const (
	PathChatCompletions = "/v1/chat/completions"
	PathCompletions     = "/v1/completions"
	PathEmbeddings      = "/v1/embeddings"
)

// Paths returns all paths that a gateway puts into [Request].Path, without the empty one.
func Paths() []string { return []string{PathChatCompletions, PathCompletions, PathEmbeddings} }
