//go:build !invariants

package readyset

// Check is a no-op in this build; see check_invariants.go.
func (*Set[T]) Check() error { return nil }
