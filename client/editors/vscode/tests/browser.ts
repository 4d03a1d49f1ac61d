// The page of the chat in a real Chromium: served as VS Code serves it, with the real chat behind it.

import * as fs from 'node:fs';
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import * as path from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { chatPage, newNonce } from '../src/core/page';
import type { FromPage, ToPage } from '../src/viewMessages';

const root = path.resolve(__dirname, '../..');
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const TYPES: Record<string, string> = { '.js': 'text/javascript', '.css': 'text/css' };

/** The program, if the machine has it. */
export const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((file) =>
  fs.existsSync(file),
);

/** Some colors of the themes of VS Code. */
export const THEMES: Record<'light' | 'dark', Record<string, string>> = {
  dark: {
    foreground: '#cccccc',
    'sideBar-background': '#181818',
    descriptionForeground: '#9d9d9d',
    'widget-border': '#313131',
    'input-background': '#313131',
    'input-foreground': '#cccccc',
    'input-border': '#3c3c3c',
    'input-placeholderForeground': '#989898',
    'button-background': '#0078d4',
    'button-foreground': '#ffffff',
    'button-hoverBackground': '#026ec1',
    'button-secondaryBackground': '#313131',
    'button-secondaryForeground': '#cccccc',
    'button-secondaryHoverBackground': '#3c3c3c',
    focusBorder: '#0078d4',
    'progressBar-background': '#0078d4',
    errorForeground: '#f85149',
    'editorError-foreground': '#f14c4c',
    'editorWarning-foreground': '#cca700',
    'textLink-foreground': '#4daafc',
    'textCodeBlock-background': '#2b2b2b',
    'inputValidation-warningBackground': '#352a05',
    'inputValidation-warningBorder': '#b89500',
    'scrollbarSlider-background': '#79797966',
    'toolbar-hoverBackground': '#5a5d5e50',
    'editor-findMatchHighlightBackground': '#ea5c0055',
  },
  light: {
    foreground: '#3b3b3b',
    'sideBar-background': '#f8f8f8',
    descriptionForeground: '#616161',
    'widget-border': '#e5e5e5',
    'input-background': '#ffffff',
    'input-foreground': '#3b3b3b',
    'input-border': '#cecece',
    'input-placeholderForeground': '#767676',
    'button-background': '#005fb8',
    'button-foreground': '#ffffff',
    'button-hoverBackground': '#0258a8',
    'button-secondaryBackground': '#e5e5e5',
    'button-secondaryForeground': '#3b3b3b',
    'button-secondaryHoverBackground': '#cccccc',
    focusBorder: '#005fb8',
    'progressBar-background': '#005fb8',
    errorForeground: '#f85149',
    'editorError-foreground': '#e51400',
    'editorWarning-foreground': '#bf8803',
    'textLink-foreground': '#005fb8',
    'textCodeBlock-background': '#f0f0f0',
    'inputValidation-warningBackground': '#f6f5d2',
    'inputValidation-warningBorder': '#b89500',
    'scrollbarSlider-background': '#64646466',
    'toolbar-hoverBackground': '#b8b8b850',
    'editor-findMatchHighlightBackground': '#ea5c0055',
  },
};

/** A tab with the page of the chat. */
export class ChatTab {
  /** Everything that the policy refused, errors of scripts, and requests to other addresses. */
  readonly problems: string[] = [];
  private readonly server: http.Server;

  private constructor(
    readonly page: Page,
    private readonly receive: (message: FromPage) => void,
  ) {
    this.server = http.createServer((request, response) => this.serve(request.url ?? '/', response));
  }

  static async open(
    browser: Browser,
    theme: 'light' | 'dark',
    size: { width: number; height: number },
    receive: (message: FromPage) => void,
  ): Promise<ChatTab> {
    const page = await browser.newPage({ viewport: size, colorScheme: theme });
    const tab = new ChatTab(page, receive);
    await new Promise<void>((resolve) => tab.server.listen(0, '127.0.0.1', resolve));
    page.on('console', (message) => {
      if (message.type() === 'error') tab.problems.push(message.text());
    });
    page.on('pageerror', (error) => tab.problems.push(String(error)));
    page.on('request', (request) => {
      if (!request.url().startsWith(tab.origin)) tab.problems.push(`request: ${request.url()}`);
    });
    await page.exposeFunction('toHost', (message: FromPage) => tab.receive(message));
    await page.addInitScript((colors) => {
      const api = {
        postMessage: (message: unknown) => (globalThis as any).toHost(message),
        getState: () => JSON.parse(sessionStorage.getItem('state') ?? 'null') ?? undefined,
        setState: (state: unknown) => sessionStorage.setItem('state', JSON.stringify(state)),
      };
      (globalThis as any).acquireVsCodeApi = () => api;
      document.addEventListener('DOMContentLoaded', () => {
        for (const [name, color] of Object.entries(colors))
          document.documentElement.style.setProperty(`--vscode-${name}`, color);
        document.documentElement.style.setProperty('--vscode-font-family', 'system-ui, sans-serif');
      });
    }, THEMES[theme]);
    await page.goto(tab.origin);
    return tab;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async post(message: ToPage): Promise<void> {
    await this.page.evaluate((value) => window.postMessage(value, '*'), message);
  }

  async close(): Promise<void> {
    await this.page.close();
    this.server.close();
  }

  private serve(url: string, response: http.ServerResponse): void {
    if (url === '/') {
      const html = chatPage({
        nonce: newNonce(),
        source: this.origin,
        script: '/out/webview/main.js',
        style: '/media/chat.css',
      });
      response.writeHead(200, { 'Content-Type': 'text/html' }).end(html);
      return;
    }
    const isServed = /^\/(?:out\/webview|media)\/[\w.]+$/.test(url);
    const file = path.join(root, url);
    if (!isServed || !fs.existsSync(file)) return void response.writeHead(url === '/favicon.ico' ? 204 : 404).end();
    response
      .writeHead(200, { 'Content-Type': TYPES[path.extname(file)] ?? 'application/octet-stream' })
      .end(fs.readFileSync(file));
  }
}

/** Starts Chromium. */
export async function launch(): Promise<Browser> {
  const { chromium: engine } = await import('playwright-core');
  return engine.launch({ executablePath: chromium!, args: FLAGS, headless: true });
}
