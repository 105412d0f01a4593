// Command protogen writes the Go code of the project's .proto files beside them. Nothing
// but Go is needed: protocompile stands in for protoc, and the two plugins are tools of
// this module, so their versions are pinned with the rest.
//
// It is run by `go generate` in the folder of scripts/tools.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

// root is the repository's, seen from scripts/tools.
const root = "../.."

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	for _, file := range []string{"broker/rpc/penstockv1/penstock.proto"} {
		request, err := compile(ctx, file)
		if err != nil {
			return err
		}
		for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
			if err := generate(ctx, plugin, request); err != nil {
				return fmt.Errorf("%s: %s: %w", file, plugin, err)
			}
		}
	}
	return nil
}

// compile is what protoc hands to its plugins: the file with all that it imports, what
// is imported first, comments included.
func compile(ctx context.Context, file string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, file)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String("paths=source_relative"),
	}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	add(files[0])
	return request, nil
}

// generate runs one plugin and writes what it answers.
func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out.Bytes(), &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
