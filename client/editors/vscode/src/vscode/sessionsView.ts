// The tree of sessions: those of this project and all, newest first, in pages.

import * as vscode from 'vscode';
import type { Connection } from '../core/connection';
import type { Scope, SessionRow, SessionsModel } from '../core/sessionsModel';

export type Node =
  { kind: 'scope'; scope: Scope } | { kind: 'session'; row: SessionRow; scope: Scope } | { kind: 'more'; scope: Scope };

export class SessionsView implements vscode.TreeDataProvider<Node> {
  private readonly changed = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changed.event;

  constructor(
    private readonly connection: Connection,
    private readonly model: () => SessionsModel,
  ) {}

  refresh(): void {
    this.changed.fire(undefined);
  }

  async getChildren(node?: Node): Promise<Node[]> {
    try {
      if (!node) {
        // Only the first look starts a daemon: a person may have stopped the one that was there.
        const isFirst =
          this.connection.state === 'idle' || (this.connection.state === 'connecting' && !this.connection.hello);
        if (isFirst) await this.connection.ready();
        const isConnected = this.connection.state === 'connected';
        await this.setDisconnected(!isConnected);
        if (!isConnected) return [];
        const scopes: Scope[] = this.model().projectPath ? ['project', 'all'] : ['all'];
        return scopes.map((scope) => ({ kind: 'scope', scope }));
      }
      if (node.kind !== 'scope') return [];
      const { scope } = node;
      const { rows, hasMore } = await this.model().list(scope);
      const nodes: Node[] = rows.map((row) => ({ kind: 'session', row, scope }));
      return hasMore ? [...nodes, { kind: 'more', scope }] : nodes;
    } catch {
      // The welcome text offers to start the daemon; the chat view says why it does not answer.
      await this.setDisconnected(true);
      return [];
    }
  }

  getTreeItem(node: Node): vscode.TreeItem {
    switch (node.kind) {
      case 'scope': {
        const isProject = node.scope === 'project';
        const state =
          isProject || !this.model().projectPath
            ? vscode.TreeItemCollapsibleState.Expanded
            : vscode.TreeItemCollapsibleState.Collapsed;
        const item = new vscode.TreeItem(isProject ? 'This project' : 'All sessions', state);
        item.id = node.scope;
        return item;
      }
      case 'more': {
        const item = new vscode.TreeItem('More…');
        item.id = `${node.scope}.more`;
        item.command = { command: 'ollm.moreSessions', title: 'More', arguments: [node.scope] };
        return item;
      }
      case 'session':
        return sessionItem(node.row, node.scope);
    }
  }

  private async setDisconnected(value: boolean): Promise<void> {
    await vscode.commands.executeCommand('setContext', 'ollm.disconnected', value);
  }
}

function sessionItem(row: SessionRow, scope: Scope): vscode.TreeItem {
  const { session } = row;
  const item = new vscode.TreeItem(row.label);
  item.id = `${scope}.${session.sessionId}`;
  item.description = row.description;
  item.tooltip = row.tooltip;
  item.contextValue = session.status === 'archived' ? 'session.archived' : 'session';
  const icon = row.running
    ? 'sync~spin'
    : session.status === 'corrupted'
      ? 'warning'
      : session.pinned
        ? 'pinned'
        : 'comment';
  item.iconPath = new vscode.ThemeIcon(icon);
  item.command = { command: 'ollm.openSession', title: 'Open', arguments: [session.sessionId] };
  return item;
}
