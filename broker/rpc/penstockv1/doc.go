// Package penstockv1 is the generated code of penstock.v1, the service that a Penstock
// broker has beside RocketMQ's.
//
// penstock.proto says what each call means. The package holds messages and stubs and
// nothing else: broker/rpc serves them, consumer/mq calls them.
package penstockv1

//go:generate go -C ../../../scripts/tools run ./protogen
